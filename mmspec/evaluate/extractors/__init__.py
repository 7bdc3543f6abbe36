"""What reads features of pictures and texts, by name; weights other than the zoo's are the user's."""
