"""What happens to rows between a source and a transform: parse, validate, filter, apply the watermark."""
