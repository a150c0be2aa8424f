"""Reading diskless partitions: find, plan, fetch, assemble."""
