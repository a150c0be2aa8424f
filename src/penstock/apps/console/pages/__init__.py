"""Pages of the console, one module for each kind of resource."""
