"""Share groups (KIP-932) at partition leaders: acquisition and acknowledgement of records."""
