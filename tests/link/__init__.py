"""Tests of links between clusters."""
