"""Enrichment: purchases joined with their products, also with products that arrive later."""
