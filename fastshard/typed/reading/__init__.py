"""Reading of typed datasets: origins, stages, iterations, batches, exports."""
