"""A short English text of several kinds of prose, written for this project: what a quick measure of a model reads.

Figures from it compare two forms of one model; it is far too short to compare models. Invariant: it never changes, so
that figures of different days compare.
"""

SAMPLE_TEXT = """\
The lighthouse at the end of the bay had not been lit for eleven years when Marta bought it. The agent had warned her \
about the stairs, the damp and the gulls, and she had nodded at each of them as one nods at the names of distant \
relatives. What she wanted was the lamp room. From there one could see the ferry leave the harbour in the morning and \
come back at night, and on clear days the white line of the mountains on the other side of the water. In the first \
week she carried up a table, a chair and a radio. In the second week the radio fell silent, and she found that she did \
not miss it.

Bread is made of four things: flour, water, salt and time. The first three can be weighed. Mix 500 grams of flour with \
350 grams of water and leave the dough alone for half an hour, so that the flour can take up the water. Then add ten \
grams of salt and a little yeast, fold the dough a few times and cover it. After three hours in a warm kitchen it \
should have doubled in size. Shape it into a loaf, let it rest for another hour, and bake it in a very hot oven until \
the crust is dark brown and the loaf sounds hollow when you knock on its base. Let it cool before you cut it; nobody \
ever does, but the crumb will be better if you can wait.

A planet keeps its distance from the sun because it is falling and moving sideways at the same time. If it stood \
still, gravity would pull it straight in. If there were no gravity, it would fly away along a straight line. Together \
the two make a curve that closes on itself. The curve is not quite a circle but an ellipse, with the sun at one of its \
two foci, and the planet moves faster where it is closer to the sun. The square of the time that it takes to go round \
once is proportional to the cube of its average distance. Astronomers found these rules in tables of observations long \
before anybody could say why they hold.

"You said the meeting was at three," said Jonas.

"I said half past two," she answered, "and I said it twice. Once on the phone, and once in the message that you did \
not read."

He looked at his phone, scrolled for a while, and put it back into his pocket. "All right," he said. "What did they \
decide?"

"To wait until spring. The bridge is safe for small cars, but lorries will have to use the road through the valley. \
The engineers want to see what the winter does to the second pillar. After that they will either repair it or close it \
for a year."

"And who pays for it?"

"That," she said, "is what they will talk about next time. At half past two."

To find the largest number in a list, look at the first one and remember it. Then go through the rest, one after the \
other. Whenever you meet a number that is larger than the one you remember, remember the new one instead. When you \
reach the end, the number that you remember is the answer. The method looks at every number exactly once, so a list \
that is twice as long takes twice as much time. Sorting the list first and taking the last number gives the same \
answer, but it does more work than the question asks for.

The town council has published its plans for the old railway line. The track, which has not been used since 1987, will \
become a path for walkers and cyclists. It is twelve kilometres long and passes through three villages, two tunnels \
and a nature reserve. Work on the first section is expected to begin in April and to take about eight months. \
Residents can see the drawings in the library on weekdays from nine to five, and comments may be sent in until the \
end of the month. The cost, according to the council, will be shared between the town, the region and a foundation \
that has supported similar projects elsewhere.
"""
