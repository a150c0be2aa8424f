"""One file per persisted format; each has its layout at the top and knows nothing of stores."""
