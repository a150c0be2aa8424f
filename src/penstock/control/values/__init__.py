"""Values and errors of the control plane."""
