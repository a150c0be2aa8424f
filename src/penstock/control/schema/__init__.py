"""Description of the control plane's tables, for the reference page."""
