"""What a log does that is copied to an archive: what may be copied, reading it, local retention."""
