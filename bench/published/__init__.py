"""What benches over folders of published files share."""
