"""Sample types apart from their classes: schemas as JSON, types made of them."""
