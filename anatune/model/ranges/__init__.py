"""One plan for a range of shapes: which few programs serve which extents, and how much that loses, proven."""
