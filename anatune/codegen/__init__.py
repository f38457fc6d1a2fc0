"""Programs of templates as TVM modules, libraries, cubins and exports; whole models to and from Relax."""
