"""Many small binary values decoded together: one NumPy step moves the cursor of every value."""
