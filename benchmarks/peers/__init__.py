"""Other systems that Penstock is measured against, and that its tests take as the oracle."""
