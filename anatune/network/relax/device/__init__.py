"""Networks for GPUs as launches: Triton kernels for all that no planned kernel computes, and memory for everything.

1. `stubs` replaces each planned kernel by a function that does nothing, so that TVM keeps its call.
2. TVM turns the graph into loops; `steps` reads its calls in order, and finds planned kernels by the stub's name.
3. `reading` turns each nest of loops into typed statements and expressions (`ir`).
4. `groups` fuses nests if one reads the same element or row that another computes; `rest` writes a group as tiles.
5. `printing` writes Triton source, `modules` the functions around it; `scans`, `depthwise`, `others`: further programs.
6. `lowering` chooses number formats and memory (`arena`), and makes the list of launches (`program`).
"""
