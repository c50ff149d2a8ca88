"""Word lists and small facts behind the synthetic tasks."""

from __future__ import annotations

ADJECTIVES = """Amber Ancient Autumn Bitter Blue Bold Brave Bright Broken Bronze Calm Clever Cold Copper Coral Crimson Crystal
Curious Damp Dark Deep Distant Dusty Early Eager Empty Fading Famous Fierce Final Frozen Gentle Giant Golden Grand Green Happy
Heavy Hidden Hollow Honest Hungry Icy Iron Ivory Jade Jolly Kind Lazy Light Little Lonely Loud Lucky Marble Merry Mighty Misty
Modern Narrow Noble Northern Old Orange Pale Patient Plain Polite Proud Purple Quick Quiet Rapid Rare Red Rough Round Royal
Rusty Sacred Salty Sharp Shiny Silent Silver Simple Slow Small Smooth Solar Southern Steady Stone Stormy Strange Strong Sunny
Swift Tall Tender Tiny Velvet Violet Warm Western White Wild Windy Winter Wise Wooden Yellow Young""".split()

NOUNS = """Anchor Apple Arrow Badger Basket Beacon Bear Bell Bird Boat Bridge Brook Camel Candle Canyon Castle Cedar Circle City
Cliff Cloud Coast Comet Corner Crane Crown Desert Dragon Eagle Engine Falcon Farm Feather Field Finch Fire Flower Forest
Fountain Fox Galaxy Garden Gate Glacier Hammer Harbor Hawk Heron Hill Horse House Island Jacket Jaguar Kettle Key Kite Lake
Lantern Leaf Lemon Letter Lion Lizard Maple Market Meadow Mill Mirror Moon Mountain Needle Oak Ocean Orchard Otter Owl Palace
Panther Paper Parrot Pearl Pebble Piano Pine Planet Pond Prairie Rabbit Raven Ridge River Road Robin Rocket Rose Sail Salmon
Shadow Shell Ship Sparrow Spring Stable Star Station Storm Stream Temple Thunder Tiger Tower Train Valley Village Wagon Wave
Whale Willow Window Wolf""".split()

VALUE_WORDS = """bread button carpet cheese chimney clock coffee cotton cousin dinner doctor dollar drawer elbow fabric finger
flour forehead garlic ginger glass glove grape gravel hammer helmet honey insect jewel kitchen ladder lawyer leather liquid
lunch magnet marble medal metal mineral mustard napkin needle noodle onion oxygen pencil pepper picture pillow pocket poem
potato powder pumpkin puzzle ribbon rubber saddle sailor salad scissors shirt shoulder singer soap sponge spoon squash statue
stomach student sugar sunset supper teacher thread ticket timber tomato towel trumpet tunnel uncle vessel violin wallet water
weather wheat wheel whistle winter wizard woman zebra basil canvas copper corner dancer desert engine farmer garden hunter
island jungle kettle lemon mirror orange planet queen rabbit silver temple turtle valley window yellow anchor barrel candle
""".split()

NAMES = """Anna Ben Carla David Emma Frank Grace Henry Ivan Julia Karl Laura Maria Nina Oscar Paul Rosa Sam Tom Vera Will Zoe Alice
Bob Clara Daniel Eva Felix Hana Jack Kate Leo Mark Nora Peter Ruth Simon Tina Victor Wendy""".split()

CITIES = """Paris London Berlin Madrid Rome Vienna Prague Dublin Oslo Helsinki Lisbon Athens Warsaw Budapest Stockholm Copenhagen
Brussels Amsterdam Tokyo Beijing Seoul Delhi Cairo Nairobi Lagos Sydney Toronto Chicago Boston Denver Austin Seattle Lima
Bogota Santiago Havana Milan Munich Lyon Porto Geneva Zurich Krakow Dallas Miami""".split()

CAPITALS = dict(pair.split(":") for pair in """France:Paris Germany:Berlin Spain:Madrid Italy:Rome Austria:Vienna Ireland:Dublin
Norway:Oslo Finland:Helsinki Portugal:Lisbon Greece:Athens Poland:Warsaw Hungary:Budapest Sweden:Stockholm Denmark:Copenhagen
Belgium:Brussels Japan:Tokyo China:Beijing Egypt:Cairo Kenya:Nairobi Canada:Ottawa Australia:Canberra Peru:Lima Colombia:Bogota
Chile:Santiago Cuba:Havana Russia:Moscow Turkey:Ankara Iran:Tehran Iraq:Baghdad India:Delhi Thailand:Bangkok Vietnam:Hanoi
Romania:Bucharest Bulgaria:Sofia Croatia:Zagreb Serbia:Belgrade Morocco:Rabat Tunisia:Tunis Ukraine:Kyiv""".split())

OPPOSITES = dict(pair.split(":") for pair in """hot:cold big:small tall:short fast:slow happy:sad light:dark old:new early:late open:closed
up:down left:right full:empty hard:soft wet:dry loud:quiet strong:weak rich:poor high:low near:far thick:thin true:false
clean:dirty heavy:light good:bad long:short wide:narrow deep:shallow sharp:dull rough:smooth sweet:bitter safe:dangerous
cheap:expensive simple:complex young:old begin:end buy:sell push:pull win:lose give:take""".split())

PLURALS = dict(pair.split(":") for pair in """cat:cats dog:dogs child:children mouse:mice foot:feet tooth:teeth man:men woman:women goose:geese box:boxes
city:cities leaf:leaves knife:knives wolf:wolves book:books house:houses bus:buses baby:babies fish:fish sheep:sheep person:people
key:keys day:days story:stories glass:glasses tree:trees""".split())

COLOURS_OF = dict(pair.split(":") for pair in """grass:green snow:white coal:black blood:red lemon:yellow banana:yellow tomato:red carrot:orange leaf:green
milk:white chocolate:brown sky:blue sea:blue strawberry:red pea:green cloud:white""".split())

SOUNDS = dict(pair.split(":") for pair in "dog:barks cat:meows cow:moos sheep:bleats duck:quacks lion:roars horse:neighs bee:buzzes snake:hisses frog:croaks owl:hoots wolf:howls".split())

TRANSLATIONS = {
    "French": dict(p.split(":") for p in "water:eau bread:pain house:maison cat:chat dog:chien book:livre sun:soleil moon:lune tree:arbre milk:lait friend:ami night:nuit day:jour red:rouge white:blanc".split()),
    "German": dict(p.split(":") for p in "water:Wasser bread:Brot house:Haus cat:Katze dog:Hund book:Buch sun:Sonne moon:Mond tree:Baum milk:Milch friend:Freund night:Nacht day:Tag red:rot white:weiß".split()),
    "Spanish": dict(p.split(":") for p in "water:agua bread:pan house:casa cat:gato dog:perro book:libro sun:sol moon:luna tree:árbol milk:leche friend:amigo night:noche day:día red:rojo white:blanco".split()),
}

CATEGORIES = {
    "fruits": "apple banana cherry grape lemon mango orange peach pear plum".split(),
    "animals": "bear cat dog fox horse lion mouse rabbit tiger wolf".split(),
    "colours": "black blue brown green orange purple red white yellow pink".split(),
    "vegetables": "bean carrot cabbage onion pea pepper potato pumpkin spinach tomato".split(),
    "tools": "hammer saw drill wrench screwdriver chisel file ladder level pliers".split(),
    "birds": "crane duck eagle finch hawk owl raven robin sparrow swan".split(),
    "trees": "oak pine birch cedar maple willow ash elm beech fir".split(),
    "instruments": "piano violin flute guitar drum trumpet harp cello organ clarinet".split(),
    "planets": "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split(),
    "metals": "iron copper gold silver zinc tin lead nickel aluminium titanium".split(),
}

NUMBER_WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()

ANIMAL_CLASS = dict(pair.split(":") for pair in """dog:mammal cat:mammal whale:mammal bat:mammal horse:mammal eagle:bird owl:bird robin:bird penguin:bird
salmon:fish shark:fish trout:fish snake:reptile lizard:reptile turtle:reptile frog:amphibian toad:amphibian bee:insect ant:insect
butterfly:insect spider:arachnid""".split())
