"""Enrichment: purchases beside what is known of their products, also of those that become known later."""
