"""Runtime of coordinators: cores, timers, and rows that are loaded and saved."""
