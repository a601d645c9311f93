"""What several test modules share. It is imported as `helpers`: the folder of the tests is on pytest's path."""
