"""Ride analytics: cities, surge, drivers."""
