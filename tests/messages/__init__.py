"""Test of messages on a ring of whole nodes during fused updates: ``make messages``."""
