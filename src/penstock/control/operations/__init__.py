"""Operations of the control plane, each with the statements of its tables."""
