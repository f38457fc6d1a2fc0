"""Loops of what no kernel of anatune's computes, written from the access maps of TVM's operators."""
