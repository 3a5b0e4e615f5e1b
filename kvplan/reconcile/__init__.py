"""What an engine printed when it started, read from its log and explained by kvplan's own figures."""
