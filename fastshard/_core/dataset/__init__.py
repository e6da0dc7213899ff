"""Members, samples and iterations of datasets: what is hot of them."""
