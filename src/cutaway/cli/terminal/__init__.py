"""What a terminal shows and gives: streams, exit codes, pictures, progress, text of a command."""
