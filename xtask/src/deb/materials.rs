//! Writes the bill of materials (SBOM) of the Debian package: the crates in it, with their
//! versions, checksums and licences, in the format CycloneDX 1.5
//! (<https://cyclonedx.org/docs/1.5/json/>).
//!
//! It has no time and no serial number, so that the same source gives the same file.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::licences::parts::{Name, Part};

/// Returns the bill of materials. `rust` is the version of the compiler, whose standard library is
/// part of every program.
pub(super) fn materials(parts: &BTreeMap<Name, Part>, version: &str, rust: &str) -> String {
    let package = format!("onramp_{version}");
    let standard = format!("rust-std@{rust}");
    let mut components: Vec<Value> = parts.iter().map(component).collect();
    components.push(json!({
        "type": "library", "bom-ref": standard, "name": "rust-std", "version": rust,
        "description": "Rust's standard library",
        "licenses": [{ "expression": "MIT OR Apache-2.0" }],
    }));
    let uses = |(name, part): (&Name, &Part)| {
        let used: Vec<String> = part.uses.iter().map(reference).collect();
        json!({ "ref": reference(name), "dependsOn": used })
    };
    let mut dependencies: Vec<Value> = parts.iter().map(uses).collect();
    let own = parts.iter().filter(|(_, part)| part.checksum.is_none());
    let all: Vec<String> = own.map(|(name, _)| reference(name)).chain([standard]).collect();
    dependencies.push(json!({ "ref": package, "dependsOn": all }));
    let whole = json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": { "component": {
            "type": "application", "bom-ref": package, "name": "onramp", "version": version,
            "licenses": [{ "expression": "MIT OR Apache-2.0" }],
        } },
        "components": components,
        "dependencies": dependencies,
    });
    format!("{whole:#}\n")
}

fn component((name, part): (&Name, &Part)) -> Value {
    let mut value = json!({
        "type": "library", "bom-ref": reference(name), "name": name.0, "version": name.1,
        "description": part.description,
        "licenses": [{ "expression": part.licence }],
    });
    if let Some(checksum) = &part.checksum {
        value["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
        // The `+` of a version has to be escaped.
        value["purl"] = format!("pkg:cargo/{}@{}", name.0, name.1.replace('+', "%2B")).into();
    }
    value
}

fn reference(name: &Name) -> String {
    format!("{}@{}", name.0, name.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_of_the_registry_has_a_checksum_and_an_address() {
        let name = |name: &str, version: &str| (name.to_owned(), version.to_owned());
        let part = |checksum: Option<&str>, uses: &[Name]| Part {
            licence: "MIT".to_owned(),
            authors: Vec::new(),
            description: String::new(),
            folder: "/".into(),
            checksum: checksum.map(str::to_owned),
            uses: uses.iter().cloned().collect(),
        };
        let (own, other) = (name("onramp", "0.1.0"), name("a", "1.0.0+b"));
        let parts = BTreeMap::from([
            (own.clone(), part(None, std::slice::from_ref(&other))),
            (other, part(Some("e3b0"), &[])),
        ]);
        let bill: Value = serde_json::from_str(&materials(&parts, "0.1.0", "1.95.0")).unwrap();
        let first = &bill["components"][0];
        assert_eq!(first["purl"], "pkg:cargo/a@1.0.0%2Bb");
        assert_eq!(first["hashes"][0]["content"], "e3b0");
        assert!(bill["components"][1].get("purl").is_none(), "Onramp is not on crates.io");
        assert_eq!(bill["dependencies"][1]["dependsOn"], json!(["a@1.0.0+b"]));
        assert_eq!(
            bill["dependencies"][2]["dependsOn"],
            json!(["onramp@0.1.0", "rust-std@1.95.0"])
        );
    }
}
