"""Conversion of datasets between formats."""
