"""Bundle of facts for a support request, without secrets and without records."""
