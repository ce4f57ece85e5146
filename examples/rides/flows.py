"""Ride analytics with its usual numbers, but for the drivers' trigger."""

from headrace import Every
from headrace.patterns.rides.flows import RideSettings, flows

# Five minutes are right for a table and long for a first look.
SETTINGS = RideSettings(driver_trigger=Every("1 minute"))

rides = flows(SETTINGS)
