"""Command line of Penstock, and the only package that assembles concrete components."""
