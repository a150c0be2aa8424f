"""`penstock diskless`: the objects of diskless topics."""
