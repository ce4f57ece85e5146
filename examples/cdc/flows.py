"""Every table of the schema `shop`, those that are made later too, as a Delta table."""

from headrace.cdc.capture.declaration import Capture
from headrace.cdc.flows import CdcSettings, mirror

shop = mirror(CdcSettings(Capture("shop", r"shop\..*"), path="silver/shop"))
