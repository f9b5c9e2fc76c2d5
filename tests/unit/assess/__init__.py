"""Tests of the assessment of event logs."""
