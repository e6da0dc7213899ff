"""Conditions on the fields of samples: predicates, their text, their bounds."""
