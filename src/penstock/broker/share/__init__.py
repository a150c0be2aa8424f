"""Share groups (KIP-932): leaders hand out records, and are told what became of them."""
