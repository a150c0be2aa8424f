"""Description of the control plane's tables."""
