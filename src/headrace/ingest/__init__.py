"""What happens to rows between a source and a transform: parsed, validated, filtered, put under a watermark."""
