"""The tables of the control plane, in one list."""
