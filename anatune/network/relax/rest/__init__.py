"""Loops for the operators without a kernel of anatune's, written from the accesses of TVM's functions."""
