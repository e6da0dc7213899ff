"""Hot paths of datasets: members, samples, iterations."""
