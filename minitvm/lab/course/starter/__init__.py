"""Starter code of the course's chapters: ``minitvm lab start chapter1`` writes one to a file of the student's."""
