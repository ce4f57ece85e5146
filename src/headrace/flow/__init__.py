"""What a flow is: frozen values, no Spark session, no I/O."""
