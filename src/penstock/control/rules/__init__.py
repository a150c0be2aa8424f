"""Rules of the control plane: pure functions from rows and a change to new rows."""
