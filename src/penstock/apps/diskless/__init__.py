"""`penstock diskless`: objects of diskless topics."""
