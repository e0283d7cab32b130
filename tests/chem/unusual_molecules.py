"""Molecules with unusual features, by what is unusual."""

UNUSUAL = {
    "salt": "[Na+].[Cl-]", "salt of an acid": "CC(=O)[O-].[K+].O", "fragments": "[Na+].[Cl-].C1CC1.O",
    "one atom": "C", "proton": "[H+]", "hydrogen atom": "[H]", "hydrogen": "[H][H]", "deuterium": "[2H]C([2H])O",
    "written hydrogen": "[H]/N=C(\\COC(C)C)NOCc1ccccc1F", "chiral by deuterium": "[2H][C@](C)(O)F",
    "isotopes": "[13CH3][14C](=O)[18OH].[300C].[999C]", "ion": "C[N+](C)(C)CC([O-])=O",
    "charges on OGB's list": "[Ti+4].[U+5].[C-5]", "charges beyond it": "[U+6].[U-6].[U+127].[U-128]",
    "charges beyond a byte": "[U+128].[U+200].[U+256].[U+300].[U-129].[U-200]",
    "stereo centres": "N[C@@H](C)C(=O)N[C@H](CO)C(=O)O", "tetrahedral": "C[C@H](O)[C@@H](O)[C@](F)(Cl)Br",
    "chiral ring closures": "C[C@@]12CC[C@H](C1)C2(C)C", "chiral sulfur": "C[S@](=O)c1ccccc1",
    "E and Z": "C/C=C/C=C\\C", "allene": "CC=C=CC", "allenal": "NC(Br)=[C@AL1]=C(O)F", "metal": "[Fe]",
    "oganesson": "[Og]", "organometal": "CC1=C(C)C(=O)[Fe]1", "dative bonds": "[NH3]->[Pt](Cl)(Cl)<-[NH3]",
    "quadruple bond": "[Re]$[Re]", "aromatic bond that is none": "C:C", "square planar": "Cl[Pt@SP1](Cl)([NH3])[NH3]",
    "trigonal bipyramidal": "S[As@TB1](F)(Cl)(Br)N", "octahedral": "C[Co@OH1](F)(Cl)(Br)(I)S",
    "hypervalent": "F[S](F)(F)(F)(F)F", "hypervalent ion": "F[P-](F)(F)(F)(F)F",
    "twelve neighbours": "[U]" + "(F)" * 12, "many hydrogens": "[WH9].[WH10].[WH12].[WH127]",
    "no implicit hydrogens": "[CH2].[C].[0CH4]", "radicals": "[CH3].[CH2].[CH].[C].[O][O]",
    "map number of one byte": "[CH3:1][OH:127]",
    "map number of five bytes": "[CH3:128][CH2:255][CH2:256][CH2:999][OH:100000]", "map number zero": "[CH3:0]C",
    "everything an atom can say": "[13C@H:500](F)(Cl)[15NH3+:7].[14CH2-:8]C", "aromatic N-oxide": "[O-][n+]1ccccc1",
    "pyrrole": "c1cc[nH]c1", "cage": "C12C3C4C1C5C2C3C45", "ferrocene": "[Fe]123456(C7C1C2C3C47)C1C5C6CC1",
    "255 atoms": "C" * (255 - 17), "256 atoms": "C" * (256 - 17), "chain": "C" * 490,
    "ring of 300": "C1" + "C" * 299 + "1",
    "300 atoms with stereo and maps": "[CH3:200]" + "C" * 300 + "/C=C\\C[C@H](F)Cl",
}  # fmt: skip
EXTENDED = {
    "atropisomer": "Cc1cccc(I)c1-c1c(C)cccc1I |wU:7.6|", "labels": "CCO |$A1;lab;$|", "values": "CCO |$_AV:a;b;c$|",
    "properties": "CCO |atomProp:0.p.1|", "radicals by label": "CCO |^1:0,^2:1|",
    "coordinates": "CCO |(0,0,;1,0,;2,1,)|", "enhanced stereo": "C[C@H](F)Cl |o1:1|",
    "stereo group": "C[C@H](F)Cl |&1:1|", "wiggly double bond": "CC=CC |w:1.0|", "cis": "CC=CC |c:1|",
    "trans": "CC=CC |t:1|", "some stereo": "CC=CC |ctu:1|", "brackets": "CCO |Sg:gen:1:|",
    "link nodes": "C1CC1 |LN:1:1.3|", "hydrogen bond": "CC.O |H:1.0|", "dative by label": "CCO |C:0.0|",
}  # fmt: skip
