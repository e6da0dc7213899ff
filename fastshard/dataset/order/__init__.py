"""The order of samples: plans, selections, states, workers."""
