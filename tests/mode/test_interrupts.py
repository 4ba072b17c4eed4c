"""Interrupts: whatever line or instruction one strikes at, everything is put back."""
