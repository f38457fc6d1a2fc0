"""Answers as pages: one HTML file each that opens without a network (extra ``report``)."""
