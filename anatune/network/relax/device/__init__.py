"""Networks for GPUs as launches: what no planned kernel computes becomes Triton kernels, and memory for all.

1. `stubs` puts a function that does nothing in the place of each planned kernel, so that TVM keeps its call.
2. TVM turns the graph into loops, and `steps` reads back what it calls, in order; a stub's name leads to its kernel.
3. `reading` makes typed statements and expressions (`ir`) of each nest of loops.
4. `groups` joins nests where one reads the very element or row that another has made; `rest` puts a group on tiles.
5. `printing` writes Triton's text, `modules` the functions around it; `scans` and `routing` write what has no loops.
6. `lowering` chooses number formats and memory (`arena`), and makes the list of launches (`program`).
"""
